package nft

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
