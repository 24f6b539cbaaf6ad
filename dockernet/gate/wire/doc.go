// Package wire makes changes of nftables in one namespace, each in one transaction and with one answer.
//
// It takes the types of github.com/google/nftables and has its expressions, but not its way of sending: there the
// kernel is asked to send every rule back and to acknowledge every message, which takes more than half of the time;
// lists of elements that are too long for their message lose some without an error; and sets get numbers from an
// unsynchronised counter.
package wire
