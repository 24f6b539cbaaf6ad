/* musl HOST PORT: looks HOST up as programs linked with musl do, for both families at once, and sends a line to an
   echo service there. Prints the address that answered. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
	struct timeval limit = {.tv_sec = 10};
	char text[] = "hello\n", back[sizeof text], address[64];
	int failed, s;

	if (argc != 3)
		return 2;
	failed = getaddrinfo(argv[1], argv[2], &hints, &list);
	if (failed) {
		fprintf(stderr, "look up %s: %s\n", argv[1], gai_strerror(failed));
		return 1;
	}
	for (a = list; a; a = a->ai_next) {
		s = socket(a->ai_family, a->ai_socktype, 0);
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0 && write(s, text, strlen(text)) == (ssize_t)strlen(text) &&
		    read(s, back, strlen(text)) == (ssize_t)strlen(text)) {
			getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST);
			printf("%s at %s\n", argv[1], address);
			return 0;
		}
		close(s);
	}
	perror(argv[1]);
	return 1;
}
