package gate

import (
	"slices"
	"strconv"
	"strings"

	"sluice/dockernet/nft"
)

// existing returns the chains and sets that the table has.
func existing(c *nft.Conn) (o nft.Objects, err error) {
	chains, err := c.Chains(tableID.Family)
	if err != nil {
		return o, err
	}
	sets, err := c.Sets(tableID)
	return nft.Objects{Chains: chains[tableID.Name], Sets: sets}, err
}

// generationOf reads the number at the end of a name. Other names have none.
func generationOf(name string) generation {
	i := strings.LastIndexByte(name, '_')
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	if err != nil || i <= 0 {
		return 0
	}
	return generation(n)
}

func newest(o nft.Objects) (newest generation) {
	for _, name := range slices.Concat(o.Chains, o.Sets) {
		newest = max(newest, generationOf(name))
	}
	return newest
}

// generations returns what belongs to some generation.
func generations(o nft.Objects) nft.Objects {
	isFixed := func(name string) bool { return generationOf(name) == 0 }
	return nft.Objects{Chains: slices.DeleteFunc(o.Chains, isFixed), Sets: slices.DeleteFunc(o.Sets, isFixed)}
}
