package kubeproxy

import (
	"fmt"

	"knarr/internal/nft"
)

// RemoveTable removes the tables of a name, of all families.
func RemoveTable(name string) error {
	c, err := nft.Open()
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
