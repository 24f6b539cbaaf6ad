package policy

import (
	"errors"
	"fmt"
)

// Inputs are everything that decides which policies a task gets.
type Inputs struct {
	Explicit, Sample Params
	// Recipes are those at hand; the ones that do not match the task do nothing.
	Recipes []Recipe
	Task    Task
	// Model is the endpoint of the model as [ParseEndpoint] returns it, the zero Target if it is not known.
	Model Target
}

// Plan is which policies a task gets, and why.
type Plan struct {
	Phases  Phases
	Sources Sources
	// Recipes are the names of those that match the task.
	Recipes []string
	// Older reports whether anything was said in the older field names.
	Older bool
	// Notes are what a user might stumble over, a sentence each.
	Notes []string
}

// Judge reports whether a policy lets a process reach an endpoint; if not, it says why and what to add.
type Judge func(p Policy, endpoint Target) (ok bool, why string)

// MakePlan resolves the policies of all phases as [Resolve] does, and then has the endpoints judged that matching
// recipes require. A plan that blocks one of them is refused: no policy is ever widened for a recipe. The error names
// every endpoint that is blocked.
func MakePlan(in Inputs, judge Judge) (Plan, error) {
	plan := Plan{Older: in.Explicit.Older || in.Sample.Older}
	var recipes []Recipe
	for _, r := range in.Recipes {
		if r.Matches(in.Task) {
			recipes = append(recipes, r)
			plan.Recipes = append(plan.Recipes, r.Name)
		}
	}
	layer, err := mergeRecipes(recipes)
	if err != nil {
		return Plan{}, err
	}
	plan.Phases, plan.Sources = Resolve(in.Explicit.Layer, in.Sample.Layer, layer)
	var errs []error
	modelRequired := false
	for _, r := range recipes {
		for _, need := range r.Requires {
			modelRequired = modelRequired || need.Endpoint == Target{} && need.Phase == Run
			if err := plan.check(r.Name, need, in.Model, judge); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if in.Model != (Target{}) && !modelRequired {
		if ok, why := judge(plan.Phases[Run], in.Model); !ok {
			plan.Notes = append(plan.Notes, fmt.Sprintf(
				"the model's endpoint is not reachable from inside the Environment in the phase run (%s): the harness must ask it from the host", why))
		}
	}
	return plan, errors.Join(errs...)
}

// check says what is wrong if a requirement of a recipe is not met.
func (p *Plan) check(recipe string, need Requirement, model Target, judge Judge) error {
	policy, field := p.Phases[need.Phase], need.Phase.Field(p.Older && p.Sources[need.Phase] != FromRecipe)
	endpoint, what := need.Endpoint, "the endpoint "+need.Endpoint.String()
	if endpoint == (Target{}) {
		if policy.Mode == Public {
			return nil
		}
		if model == (Target{}) {
			return fmt.Errorf("%s: the recipe %s requires the model's endpoint, which is not known: give --model-base-url", field, quote(recipe))
		}
		endpoint, what = model, "the model's endpoint "+model.String()
	}
	ok, why := judge(policy, endpoint)
	if ok {
		return nil
	}
	reason := ""
	if need.Why != "" {
		reason = " (" + need.Why + ")"
	}
	return fmt.Errorf("%s, from %s, blocks %s, which the recipe %s requires%s: %s. A recipe widens no policy: add the target where the policy comes from, or override the phase with --env-params '{%q: ...}'",
		field, p.Sources[need.Phase], what, quote(recipe), reason, why, field)
}
