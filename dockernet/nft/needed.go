package nft

// Uses returns the names of the chains that the rules lead to, and of the sets that they look into.
func (c *Chain) Uses() (names []string) {
	for _, r := range c.Rules {
		for _, p := range r {
			switch p := p.(type) {
			case Verdict:
				if p.chain != "" {
					names = append(names, p.chain)
				}
			case In:
				names = append(names, p.Set)
			}
		}
	}
	return names
}

// Needed returns the sets that rules of the table have.
func (t *Table) Needed() (sets []Set) {
	needed := make(map[string]bool)
	for i := range t.Chains {
		for _, r := range t.Chains[i].Rules {
			for _, p := range r {
				if in, ok := p.(In); ok {
					needed[in.Set] = true
				}
			}
		}
	}
	for _, s := range t.Sets {
		if needed[s.Name] {
			sets = append(sets, s)
		}
	}
	return sets
}
