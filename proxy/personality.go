package proxy

import "sluice/proxy/refusal"

// Personality shapes answers for clients that expect another proxy's. Its zero value is Sluice's own.
type Personality struct {
	// Realm is named in a 407.
	Realm string
	// Status maps the HTTP status of an answer, if set.
	Status func(status int) int
	// NoBody leaves the text out of answers.
	NoBody bool
}

func (p Personality) shape(r *refusal.Refusal) {
	r.Realm, r.NoBody = p.Realm, p.NoBody
	if p.Status != nil {
		r.Status = p.Status(r.Status)
	}
}
