// Package agentcompass makes the proxy stand in for the one that AgentCompass 1.0.1 starts beside a task on Docker: its
// policy file, its environment, its command lines and its answers.
//
// AgentCompass never hears of an error in the file, so [Decode] takes what its own proxy takes and refuses what that
// refuses. Within that, targets are judged by this project's stricter rules:
//
//   - An allowlist's entry that is no target here (localhost, 127.1, [a.test]:443, …) allows nothing.
//   - A denylist's entry that is none still denies what it can stand for: a network with host bits denies the whole
//     network, an address with a zone id that address in every zone, and a name with an underscore, an A-label that is
//     not valid or the like that very name. What is left cannot be the host of a request that is let through, because
//     no such host is judged at all: numbers that look like addresses, white space, empty labels, letters beyond ASCII.
//   - Each is returned as [Rejected], to be logged and counted.
//
// Strings may be in the form "host:port", as AgentCompass reads them in its own configuration; its proxy would look
// for a host of that name, in vain.
package agentcompass
