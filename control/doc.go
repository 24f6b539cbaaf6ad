// Package control is the wire between a proxy and those who steer it: the types, a client, a handler, and the passing
// of file descriptors.
//
// It knows how requests and descriptors travel and who may send them, not what either side does with them. All of
// it runs over unix sockets; both ends check the other's user id (see [CheckPeer]).
package control
