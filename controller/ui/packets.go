package ui

import "time"

// A rate is that between two samples. One that is older than forgetAfter says nothing of now.
const (
	sampleEvery = time.Second
	forgetAfter = 15 * time.Second
)

// sample is what the kernel had counted of a container.
type sample struct {
	at    time.Time
	count uint64
	rate  float64 // packets a second since the sample before
	known bool    // whether there was one
}

// direct returns how many packets a second go straight from a container, false if that is not known yet. The kernel is
// asked once a second at most, however many look on.
func (p *Page) direct(id string) (rate float64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	last, there := p.samples[id]
	if there && now.Sub(last.at) < sampleEvery {
		return last.rate, last.known
	}
	count, _, ok := p.source.Packets(id)
	if !ok {
		delete(p.samples, id)
		return 0, false
	}
	s := sample{at: now, count: count}
	// Rules that were made anew count anew.
	if age := now.Sub(last.at); there && age < forgetAfter && count >= last.count {
		s.rate, s.known = float64(count-last.count)/age.Seconds(), true
	}
	p.samples[id] = s
	return s.rate, s.known
}
