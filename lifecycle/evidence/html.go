package evidence

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"

	"github.com/docker/go-units"

	"sluice/lifecycle"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"bytes": func(n uint64) string { return units.BytesSize(float64(n)) },
	"seconds": func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
	},
	"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
	"refused": func(a Attempt) bool { return a.Verdict == Refused },
	// class is the phase if it is a known one: its name comes from a file.
	"class": func(phase any) string {
		switch name := fmt.Sprint(phase); name {
		case "baseline", "run", "evaluation":
			return name
		}
		return ""
	},
}).Parse(page))

// bar is a step on the time line; Left and Width are percents.
type bar struct {
	lifecycle.Step
	Name        string
	Left, Width float64
}

// Bars places the steps on a time line from the first to the last; of a container, what is in force from one switch to
// the next.
func (r Report) Bars() []bar {
	if len(r.Steps) == 0 {
		return nil
	}
	began, ended := r.Steps[0].Began, r.Steps[0].Began
	end := func(s lifecycle.Step) time.Time { return s.Began.Add(time.Duration(s.Seconds * float64(time.Second))) }
	steps := slices.Clone(r.Steps)
	for i := range steps {
		if r.Container != nil {
			until := r.Now
			if i+1 < len(steps) {
				until = steps[i+1].Began
			}
			steps[i].Seconds = until.Sub(steps[i].Began).Seconds()
		}
		if s := steps[i]; s.Began.Before(began) {
			began = s.Began
		}
		if e := end(steps[i]); e.After(ended) {
			ended = e
		}
	}
	total := max(ended.Sub(began).Seconds(), 1e-9)
	var bars []bar
	for _, s := range steps {
		b := bar{Step: s, Name: string(s.Boundary), Left: 100 * s.Began.Sub(began).Seconds() / total, Width: 100 * s.Seconds / total}
		switch {
		case r.Container != nil:
			b.Name = s.Phase.String()
		case s.Switch:
			b.Name = "→ " + s.Phase.String()
		}
		bars = append(bars, b)
	}
	return bars
}

// WriteHTML writes the report as one file that loads nothing.
func (r Report) WriteHTML(w io.Writer) error { return pageTemplate.Execute(w, r) }
