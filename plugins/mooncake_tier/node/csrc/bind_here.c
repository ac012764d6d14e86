/* Preloaded into Mooncake's processes: a socket that would listen on every interface listens on one address.
 *
 * Mooncake 0.3.13 takes addresses for its master's ports, but opens its transfer ports on every interface. They let
 * anyone who reaches them read and write the pool. MOONCAKE_TIER_BIND is the IPv4 address to use instead.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

int bind(int descriptor, const struct sockaddr *address, socklen_t length)
{
    bind_function stock = (bind_function)dlsym(RTLD_NEXT, "bind");
    const char *here = getenv("MOONCAKE_TIER_BIND");
    struct in_addr host;

    if (!here || !address || inet_pton(AF_INET, here, &host) != 1)
        return stock(descriptor, address, length);
    if (address->sa_family == AF_INET && length >= (socklen_t)sizeof(struct sockaddr_in)) {
        struct sockaddr_in one;
        memcpy(&one, address, sizeof one);
        if (one.sin_addr.s_addr == htonl(INADDR_ANY)) {
            one.sin_addr = host;
            return stock(descriptor, (const struct sockaddr *)&one, sizeof one);
        }
    }
    if (address->sa_family == AF_INET6 && length >= (socklen_t)sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 one;
        memcpy(&one, address, sizeof one);
        if (IN6_IS_ADDR_UNSPECIFIED(&one.sin6_addr)) {
            /* A socket for both families takes an IPv4 address in this form. */
            memset(&one.sin6_addr, 0, 10);
            memset((char *)&one.sin6_addr + 10, 0xff, 2);
            memcpy((char *)&one.sin6_addr + 12, &host, sizeof host);
            return stock(descriptor, (const struct sockaddr *)&one, sizeof one);
        }
    }
    return stock(descriptor, address, length);
}
