// Package resolve looks up the addresses behind a host name for the proxy itself, and remembers them for as long as
// their TTL allows.
//
// It only tells what a name stands for. Whether an address may be dialled is for the caller to judge, each one, and
// only addresses of an [Answer] that were judged may be dialled.
package resolve
