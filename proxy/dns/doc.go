// Package dns is the DNS filter: it answers what the policy refuses itself and sends only what it allows to the
// name servers behind it.
package dns
