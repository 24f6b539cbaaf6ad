package policy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Recipe is what somebody who knows a benchmark or a harness says about its network: policies for phases that neither
// the run nor the task's sample names, and endpoints without which it cannot work. A recipe never changes a policy.
type Recipe struct {
	Name string
	// When limits the tasks that the recipe is for.
	When Match
	// Layer is what it says about the phases.
	Layer Layer
	// Requires are the endpoints that must be reachable.
	Requires []Requirement
}

// Match is a condition on a task. An empty list holds for every task.
type Match struct{ Benchmarks, Harnesses, Providers []string }

// Requirement is an endpoint that processes in the Environment must reach in a phase.
type Requirement struct {
	Phase Phase
	// Endpoint is a host name or an address with a port; the zero Target is the model's endpoint.
	Endpoint Target
	// Why says what needs it; it may be empty.
	Why string
}

var (
	recipeFields      = append([]string{"recipe", "when", "requires"}, phaseFields...)
	matchFields       = []string{"benchmark", "harness", "provider"}
	requirementFields = []string{"phase", "endpoint", "why"}
)

// modelEndpoint stands in a recipe for the endpoint of the model.
const modelEndpoint = "model"

// ParseRecipe reads a recipe in JSON or YAML:
//
//	recipe: NAME
//	when: {benchmark: NAME, harness: [NAME, ...], provider: NAME}
//	run_network_policy: POLICY
//	requires:
//	- {phase: run, endpoint: model, why: the harness asks it from inside}
//	- {phase: evaluation, endpoint: "judge.example.com:443"}
//
// Only the name is needed. Errors are an *[Errors].
func ParseRecipe(data []byte) (Recipe, error) {
	n, err := readDocument(data)
	w := walker{}
	var r Recipe
	switch {
	case err != nil:
		w.errs.add("", err)
	case n.kind != objectNode:
		w.errs.add("", &Error{Text: n.show(), Problem: "is not a recipe", Repair: "write an object with " + strings.Join(recipeFields, ", ")})
	default:
		r = w.recipe(&n)
	}
	if err := w.errs.err(); err != nil {
		return Recipe{}, err
	}
	return r, nil
}

func (w *walker) recipe(n *node) Recipe {
	f := w.fields("", n, recipeFields)
	r := Recipe{Name: w.text("/recipe", f[0], "a name")}
	if f[0] == nil {
		w.errs.add("", &Error{Text: n.show(), Problem: "has no name", Repair: "write it as recipe: NAME"})
	}
	if when := f[1]; when != nil && w.object("/when", when) {
		m := w.fields("/when", when, matchFields)
		for i, list := range []*[]string{&r.When.Benchmarks, &r.When.Harnesses, &r.When.Providers} {
			*list = w.texts(jsontext.Pointer("/when").AppendToken(matchFields[i]), m[i])
		}
	}
	if requires := f[2]; requires != nil {
		if requires.kind != listNode {
			w.errs.add("/requires", &Error{Text: requires.show(), Problem: "is not a list", Repair: "write a list of objects with phase and endpoint"})
		} else {
			for i := range requires.kids {
				at := jsontext.Pointer("/requires").AppendToken(fmt.Sprint(i))
				if w.object(at, &requires.kids[i]) {
					r.Requires = append(r.Requires, w.requirement(at, &requires.kids[i]))
				}
			}
		}
	}
	for phase, value := range f[3:] {
		if value != nil {
			p, _ := w.policy(pointer(phaseFields[phase]), value)
			r.Layer[phase] = &p
		}
	}
	return r
}

func (w *walker) requirement(at jsontext.Pointer, n *node) Requirement {
	f := w.fields(at, n, requirementFields)
	r := Requirement{Phase: Run, Why: w.text(at.AppendToken("why"), f[2], "a sentence")}
	if f[0] != nil {
		r.Phase, _ = readWord[Phase](w, at.AppendToken("phase"), f[0], "phase", phaseWords)
	}
	const repair = `write "model", or a host or an address with a port, as in "judge.example.com:443"`
	if f[1] == nil {
		w.errs.add(at, &Error{Text: n.show(), Problem: "has no endpoint", Repair: repair})
		return r
	}
	text := w.text(at.AppendToken("endpoint"), f[1], "an endpoint")
	if text == modelEndpoint || text == "" {
		return r
	}
	t, err := parser{}.short(text)
	if err == nil && (t.Port == 0 || t.Kind == Wildcard || t.Kind == IPv4CIDR || t.Kind == IPv6CIDR) {
		err = &Error{Problem: "is not one endpoint", Repair: repair}
	}
	if err != nil {
		err.Text = quote(text)
		w.errs.add(at.AppendToken("endpoint"), err)
	}
	r.Endpoint = t
	return r
}

func (w *walker) object(at jsontext.Pointer, n *node) bool {
	if n.kind != objectNode {
		w.errs.add(at, &Error{Text: n.show(), Problem: "is not an object", Repair: "write an object"})
	}
	return n.kind == objectNode
}

// text reads a string that is not empty; "" for a missing one, or after an error.
func (w *walker) text(at jsontext.Pointer, n *node, what string) string {
	if n == nil {
		return ""
	}
	if n.kind != stringNode || n.text == "" {
		w.errs.add(at, &Error{Text: n.show(), Problem: "is not " + what, Repair: "write " + what + " in quotes"})
		return ""
	}
	return n.text
}

// texts reads one string or a list of them.
func (w *walker) texts(at jsontext.Pointer, n *node) []string {
	if n == nil {
		return nil
	}
	if n.kind != listNode {
		return []string{w.text(at, n, "a name")}
	}
	if len(n.kids) == 0 {
		w.errs.add(at, &Error{Text: n.show(), Problem: "is an empty list, which nothing matches", Repair: "name something, or leave it out"})
	}
	var list []string
	for i := range n.kids {
		list = append(list, w.text(at.AppendToken(fmt.Sprint(i)), &n.kids[i], "a name"))
	}
	return list
}

// Task is what a recipe is matched with. What is not known is "".
type Task struct{ Benchmark, Harness, Provider string }

// Matches reports whether the recipe is for a task.
func (r Recipe) Matches(t Task) bool {
	is := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	return is(r.When.Benchmarks, t.Benchmark) && is(r.When.Harnesses, t.Harness) && is(r.When.Providers, t.Provider)
}

// mergeRecipes is what all recipes say about the phases. They may not contradict each other.
func mergeRecipes(recipes []Recipe) (Layer, error) {
	var all Layer
	var by [PhaseCount]string
	for _, r := range recipes {
		for phase, p := range r.Layer {
			switch {
			case p == nil:
			case all[phase] == nil:
				all[phase], by[phase] = p, r.Name
			case all[phase].Digest() != p.Digest():
				return Layer{}, fmt.Errorf("the recipes %s and %s give the phase %s different policies: leave one of them out, or say %s yourself",
					quote(by[phase]), quote(r.Name), Phase(phase), phaseFields[phase])
			}
		}
	}
	return all, nil
}

// ParseEndpoint returns the endpoint behind the base URL of a model: its host with the URL's port, or with that of its
// scheme. A URL without a scheme is one of https. User info and path are dropped, and no error shows them.
func ParseEndpoint(baseURL string) (Target, error) {
	text := baseURL
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	fail := func(problem string) (Target, error) {
		return Target{}, &Error{Text: quote(baseURL), Problem: problem, Repair: `write a URL, as in "https://api.example.com/v1"`}
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return fail("is not the URL of an endpoint")
	}
	port := map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	if p := u.Port(); p != "" {
		port = p
	}
	if port == "" {
		return fail("has neither a port nor the scheme http or https")
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	t, targetErr := parser{offersNothing: true}.short(host + ":" + port)
	if targetErr != nil || t.Kind == Wildcard {
		return fail("has no host and port that a policy can name")
	}
	return t, nil
}
