// Package controller decides which container is under which policy in which phase, and makes it so: it attaches
// containers, switches their phases, and keeps what is in force in step with the engine.
//
// A container goes through few states. [Controller.Attach] makes it a member: its namespace is open, its listeners are
// in the sidecar's hands, and the rules of all three phases lie ready in three layers, the gate inside its namespace,
// the guard outside of it, and the rule set of its session in the sidecar. [Controller.Phase] changes what is in force,
// in the order that keeps everything that is allowed at any instant within the old policy or within the new one:
//
//	kernel   gate and guard let through what the old phase and the new one both allow
//	proxy    the session's rules are swapped, and flows that they refuse are cut
//	kernel   gate and guard let through what the new phase allows
//	cut      sockets and connections of the direct plane that it refuses are destroyed
//	receipt
//
// Where the gate refuses frames that the container makes itself, nothing gets past it. Then it alone does the first step,
// and the guard goes from the old phase to the new one in the third, which may last until the cut is done.
//
// If a step fails, the container is quarantined: nothing passes until a switch succeeds.
//
// What belongs to a container is known by its id and its namespace, never by its name or address, so nothing of it
// applies to another one. What it needs from the engine, the kernel and the sidecar is said in [Engine], [Host] and
// [Sidecar].
package controller
