// Package forward serves plain HTTP/1 on a client connection: it reads requests strictly, has each of them judged by
// its own authority, and passes them on with goproxy.
//
// A request meets, in order: guard, which finds where it begins and ends and refuses what could be read in two ways;
// net/http, which is shown neither target nor Host; client, which has it judged; exchange, which sends it over a
// connection that the judge dialled; goproxy, which passes the answer on; and writer, which keeps it flowing. A
// WebSocket is relayed here once the server has agreed to it.
//
// Where RFC 9110 asks for it and this package does not do it: no Via is added and Max-Forwards is not counted, so that
// servers see no proxy; trailers of requests end here.
//
// net/http prints, by package log, the first bytes of what a server says unasked. A program that uses this package
// should give that logger no output.
package forward
