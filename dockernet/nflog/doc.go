// Package nflog reads the packets that rules of nftables have logged to a group of NFLOG, in any number of network
// namespaces.
package nflog
