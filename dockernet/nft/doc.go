// Package nft writes nftables rules down as values that print as nft reads them, and gives them to the kernel.
//
// A [Table] is what rules are about, a [Batch] what changes of it in one transaction, and a [Conn] the way to the
// kernel. Sets are filled in one transaction and rules that look into them changed in another: only a transaction of
// rules alone is one instant to packets.
package nft
