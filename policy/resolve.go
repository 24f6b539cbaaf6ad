package policy

// Source says where a phase's policy comes from.
type Source uint8

const (
	FromDefault  Source = iota // nothing names the phase: public
	FromRecipe                 // a recipe that matches the task
	FromSample                 // the task's sample
	FromExplicit               // a value given for the run
)

var sourceWords = []string{FromDefault: "default", FromRecipe: "recipe", FromSample: "sample", FromExplicit: "explicit"}

// String returns "default", "recipe", "sample" or "explicit".
func (s Source) String() string { return wordOr(sourceWords, int(s)) }

// MarshalText returns the source's word.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sources holds the source of every phase's policy, indexed by [Phase].
type Sources [PhaseCount]Source

// Resolve decides which policy each phase gets: the explicit one, else the sample's, else the recipe's, else public.
// Every phase is decided by itself; policies are taken whole and never merged. What phases inherit under their older
// field names they inherit inside one layer, when it is parsed.
func Resolve(explicit, sample, recipe Layer) (Phases, Sources) {
	var phases Phases
	var sources Sources
	for phase := range phases {
		phases[phase] = Policy{Mode: Public}
		for source, layer := range []Layer{FromRecipe: recipe, FromSample: sample, FromExplicit: explicit} {
			if p := layer[phase]; p != nil {
				phases[phase], sources[phase] = *p, Source(source)
			}
		}
	}
	return phases, sources
}
