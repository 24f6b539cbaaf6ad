// Package forward serves plain HTTP/1 on a client connection: it reads requests strictly, has each of them judged by
// its own authority, and passes them on with goproxy.
package forward
