package sidecar

import (
	"net/netip"
	"time"
)

// Status is what an operator sees of the sidecars.
type Status struct {
	Sidecars []InstanceStatus `json:"sidecars"` // the newest last
	Sessions int              `json:"sessions"`
	// Restarts counts sidecars that died, hung or failed since the controller started.
	Restarts uint64 `json:"restarts"`
	Bridge   string `json:"bridge"`
	Problem  string `json:"problem,omitempty"` // why the newest sidecar could not be started
}

// InstanceStatus is one sidecar.
type InstanceStatus struct {
	Number    int          `json:"number"`
	Container string       `json:"container"`
	State     string       `json:"state"` // "starting", "serving", or "draining" after an upgrade
	Image     string       `json:"image"`
	Addresses []netip.Addr `json:"addresses"`
	Since     time.Time    `json:"since"` // when it was started, or adopted
	Adopted   bool         `json:"adopted,omitempty"`
}

// Status describes the sidecars; it asks nobody and does not wait.
func (s *Sidecar) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{Sessions: len(s.sessions), Restarts: s.metrics.restarted(), Bridge: s.network.Bridge}
	if s.problem != nil {
		status.Problem = s.problem.Error()
	}
	for _, i := range s.instances {
		one := InstanceStatus{Number: i.number, Container: i.id, State: "serving", Image: i.image, Addresses: i.addresses,
			Since: i.started, Adopted: i.adopted}
		switch {
		case !i.isSettled():
			one.State = "starting"
		case i.draining:
			one.State = "draining"
		}
		status.Sidecars = append(status.Sidecars, one)
	}
	return status
}
