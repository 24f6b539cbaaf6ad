// Package dns is the DNS filter: it answers what the policy refuses itself and sends only what it allows to the
// name servers behind it.
//
// A query is read where it lies in the buffer, judged, and either answered from there or sent on as a packet of the
// filter's own: its question in lower case, the flags RD, AD, CD and DO, and nothing else that the client wrote. The
// answer is walked, not decoded; only one that has to lose records is decoded and encoded again. See RFC 1035, 6891
// (EDNS), 7766 (TCP), 8914 (extended errors) and 9460 (SVCB and HTTPS).
package dns
