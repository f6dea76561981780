package cluster

import (
	"slices"

	"github.com/google/nftables"

	"knarr/internal/nft"
)

// presentTables are the names that some nftables table has, of any family. What
// cannot be listed is left out: removing it fails too, and says why.
func presentTables(names ...string) (present []string) {
	c, err := nft.Open()
	if err != nil {
		return nil
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil
	}
	for _, name := range names {
		if slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }) {
			present = append(present, name)
		}
	}
	return present
}
