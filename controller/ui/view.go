package ui

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/controller/api"
)

// What an answer holds at most, whatever there is.
const (
	maxRows     = 25
	maxRefusals = 30
	maxAsk      = 200 // bytes of a filter
)

// ask is what a reader wants to see.
type ask struct {
	terms []string // lower case; a container must match each
	from  int
	sort  string
}

// Orders of the containers. Quarantined ones come first in each.
const (
	byName    = "name"
	byRefused = "refused"
	byChange  = "change"
)

func parseAsk(q url.Values) (a ask, err error) {
	if text := q.Get("q"); len(text) > maxAsk {
		return a, fmt.Errorf("q: a filter has at most %d bytes", maxAsk)
	} else if text != "" {
		a.terms = strings.Fields(strings.ToLower(text))
	}
	if text := q.Get("from"); text != "" {
		if a.from, err = strconv.Atoi(text); err != nil || a.from < 0 {
			return a, fmt.Errorf("from: give the number of the first row, not %.20q", text)
		}
	}
	switch a.sort = cmp.Or(q.Get("sort"), byName); a.sort {
	case byName, byRefused, byChange:
		return a, nil
	}
	return a, fmt.Errorf("sort: %s, %s or %s, not %.20q", byName, byRefused, byChange, a.sort)
}

// View is an answer.
type View struct {
	Version string `json:"version"`
	// Total and States are of all containers, Matched of those that the filter has left.
	Total   int               `json:"total"`
	States  map[api.State]int `json:"states"`
	Matched int               `json:"matched"`
	From    int               `json:"from"` // which of them is the first row
	Page    int               `json:"page"` // how many rows there are at most
	Rows    []Row             `json:"rows"`
	// Refusals are the last ones of those containers, the newest first.
	Refusals []*Refusal `json:"refusals"`
	// Missed is how often records came faster than they could be counted.
	Missed int `json:"missed"`
}

// Row is a container.
type Row struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	State      api.State `json:"state"`
	Problem    string    `json:"problem,omitempty"`
	Phase      string    `json:"phase"`
	Mode       string    `json:"mode"`
	Targets    int       `json:"targets"`
	Generation uint64    `json:"generation"`
	Since      time.Time `json:"since"`
	Weak       []string  `json:"weak,omitempty"`
	Uncovered  float64   `json:"uncovered_ms,omitempty"`
	Minute     counts    `json:"minute"`
	// Direct is how many packets a second go straight, without the proxy; nil while that is not known.
	Direct *float64 `json:"direct,omitempty"`
	id     string
}

func (a *ask) matches(s *api.Status) bool {
	name := strings.ToLower(s.Name)
	for _, t := range a.terms {
		if !strings.Contains(name, t) && !strings.HasPrefix(s.ID, t) && t != string(s.State) && t != s.Phase && t != s.Mode {
			return false
		}
	}
	return true
}

// view makes the answer to a, but for what the kernel has to be asked for.
func (p *Page) view(all []api.Status, a ask) View {
	v := View{Version: p.version, Total: len(all), Page: maxRows, States: map[api.State]int{api.Attached: 0, api.Quarantined: 0, api.Stopped: 0},
		Rows: []Row{}, Refusals: []*Refusal{}}
	now := p.now()
	w := p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	v.Missed = w.missed
	type found struct {
		*api.Status
		counts
	}
	var left []found
	for i := range all {
		s := &all[i]
		v.States[s.State]++
		if !a.matches(s) {
			continue
		}
		f := found{Status: s}
		if at := w.of[s.ID]; at != nil {
			f.counts = at.minute(now)
			if len(a.terms) > 0 {
				v.Refusals = append(v.Refusals, at.refused...)
			}
		}
		left = append(left, f)
	}
	if len(a.terms) == 0 {
		v.Refusals = append(v.Refusals, w.last...)
	}
	v.Refusals = newest(v.Refusals)
	slices.SortFunc(left, func(x, y found) int {
		order := urgency(x.State) - urgency(y.State)
		switch a.sort {
		case byRefused:
			order = cmp.Or(order, cmp.Compare(y.Refused, x.Refused))
		case byChange:
			order = cmp.Or(order, y.Since.Compare(x.Since))
		}
		return cmp.Or(order, cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID))
	})
	v.Matched = len(left)
	v.From = min(a.from, max(0, len(left)-1)/maxRows*maxRows)
	for _, f := range left[v.From:min(len(left), v.From+maxRows)] {
		v.Rows = append(v.Rows, Row{id: f.ID, ID: fmt.Sprintf("%.12s", f.ID), Name: f.Name, State: f.State, Problem: f.Problem, Phase: f.Phase, Mode: f.Mode,
			Targets: f.Targets, Generation: f.Generation, Since: f.Since, Weak: f.Weak, Uncovered: f.UncoveredMilliseconds, Minute: f.counts})
	}
	return v
}

func urgency(s api.State) int {
	if s == api.Quarantined {
		return 0
	}
	return 1
}

// newest sorts refusals and keeps as many as an answer may hold.
func newest(all []*Refusal) []*Refusal {
	slices.SortStableFunc(all, func(x, y *Refusal) int { return y.Time.Compare(x.Time) })
	return all[:min(len(all), maxRefusals)]
}
