package nft

import "golang.org/x/sys/unix"

// DeleteCounters takes counters away. No rule may refer to them any more.
func (b *Batch) DeleteCounters(id ID, names ...string) {
	for _, n := range names {
		b.add(id, unix.NFT_MSG_DELOBJ, 0, func(a attributes) attributes {
			return a.text(unix.NFTA_OBJ_NAME, n).number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
		})
	}
}

// DeleteBaseChain takes a chain away that has a hook, also where the kernel has taken it away already with the interface
// that it was on.
func (b *Batch) DeleteBaseChain(id ID, name string) {
	b.AddChains(id, Chain{Name: name})
	b.Delete(id, Objects{Chains: []string{name}})
}

// Compiled returns what the kernel gets for the rules of a chain. It is equal for chains that do the same and lead to
// the same.
func Compiled(id ID, ch *Chain) (all []byte, err error) {
	b := new(Batch)
	for _, r := range ch.Rules {
		list, err := b.rule(id, ch, r)
		if err != nil {
			return nil, err
		}
		all = attributes(all).nest(unix.NFTA_RULE_EXPRESSIONS, list)
	}
	return all, nil
}
