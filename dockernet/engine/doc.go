// Package engine asks a Docker engine, 20.10 or newer, what a container is and what happens to it, says why a container
// cannot be put under a policy, and keeps the networks that Sluice manages.
//
// It reads and decides; what it changes are managed networks alone. Containers are known by their ids, never by names,
// which the engine gives to the next one.
package engine
