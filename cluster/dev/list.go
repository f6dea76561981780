package dev

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"knarr/cluster"
)

type listed struct {
	*Cluster
	state
}

// list gives the clusters below a directory.
func list(base string) (all []listed, err error) {
	entries, err := os.ReadDir(base)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--dir %s: %w", base, err)
	}
	for _, e := range entries {
		c, err := Open(base, e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		s, made, err := c.load()
		if err != nil {
			return nil, err
		}
		if made {
			all = append(all, listed{c, s})
		}
	}
	return all, nil
}

// List writes a table of the clusters below a directory.
func List(w io.Writer, base string) error {
	all, err := list(base)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		fmt.Fprintf(w, "no clusters in %s; knarr dev up makes one\n", base)
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tNODES\tRUNNING\tSERVERS\tADDRESSES\tPODS\tSERVICES\tKUBECONFIG")
	for _, c := range all {
		running := 0
		for n := 1; n <= c.Nodes; n++ {
			if cluster.Running(c.data(n)) {
				running++
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", c.name, c.Nodes, running, c.names(1, c.Servers), c.all(family.hosts), c.all(family.pods), c.all(family.services), c.Kubeconfig())
	}
	return t.Flush()
}
