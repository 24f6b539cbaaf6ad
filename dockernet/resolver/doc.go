// Package resolver finds the name servers behind 127.0.0.11, where the engine answers DNS inside of a container.
//
// A sidecar in the container's namespace asks those itself. The engine's resolver asks them from there too, in most
// cases, where its questions would be taken for the workload's; and its answers come by a loopback address, which a
// workload can forge.
package resolver
