package cluster

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// removeTable removes the tables of a name, if they are there.
func removeTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == name {
			c.DelTable(t)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table %s: %w", name, err)
	}
	return nil
}

// presentTables are the names that some nftables table has, of any family. What
// cannot be listed is left out: removing it fails too, and says why.
func presentTables(names ...string) (present []string) {
	c, err := nftables.New()
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
