package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"knarr/cluster"
	"knarr/cluster/dev"
	"knarr/node/containerruntime"
)

// imageForms are what images ls -o may be.
var imageForms = []string{"wide", "json", "name"}

// A listedImage is an image as images ls -o json shows it.
type listedImage struct {
	Node    string    `json:"node,omitempty"`
	Names   []string  `json:"names"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	Pinned  bool      `json:"pinned"`
}

// A listedPull is an image that is being pulled.
type listedPull struct {
	node string
	containerruntime.Pull
}

// listImages finds the images of nodes and those that are being pulled, in the order of
// the nodes.
func listImages(ctx context.Context, nodes []dev.NodeDir) (all []listedImage, pulls []listedPull, err error) {
	for _, node := range nodes {
		list, underway, err := imagesAndPulls(ctx, node.Dir)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range underway {
			pulls = append(pulls, listedPull{node.Node, p})
		}
		for _, i := range list {
			all = append(all, listedImage{node.Node, append([]string{}, i.Names...), i.Digest, i.Size, i.Created.UTC(), i.Pinned})
		}
	}
	return all, pulls, nil
}

func imagesAndPulls(ctx context.Context, dir string) (list []containerruntime.Image, pulls []containerruntime.Pull, err error) {
	store, err := cluster.Images(dir)
	if err != nil {
		return nil, nil, err
	}
	defer store.Close()
	if list, err = store.ListImages(ctx); err == nil {
		pulls, err = store.Pulls(ctx)
	}
	return list, pulls, err
}

func imagesIn(ctx context.Context, dir string) ([]containerruntime.Image, error) {
	store, err := cluster.Images(dir)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	return store.ListImages(ctx)
}

// printImages writes them in a form; short digests are enough for people.
func printImages(w io.Writer, all []listedImage, form string) error {
	switch form {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(append([]listedImage{}, all...))
	case "name":
		for _, i := range all {
			for _, name := range i.Names {
				fmt.Fprintln(w, name)
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	node, wide := "", form == "wide"
	head := func() {
		if wide {
			fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tPINNED\tCREATED")
		} else {
			fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tPINNED")
		}
	}
	for n, i := range all {
		if n == 0 || i.Node != node {
			_ = t.Flush() // columns are as wide as a node's names
			if node = i.Node; node != "" {
				fmt.Fprintln(w, node+":")
			}
			head()
		}
		for _, name := range i.Names {
			if wide {
				fmt.Fprintf(t, "%s\t%s\t%.1f MB\t%v\t%s\n", name, i.Digest, float64(i.Size)/1e6, i.Pinned, i.Created.Format(time.RFC3339))
			} else {
				fmt.Fprintf(t, "%s\t%.19s\t%.1f MB\t%v\n", name, i.Digest, float64(i.Size)/1e6, i.Pinned)
			}
		}
	}
	if len(all) == 0 {
		head()
	}
	return t.Flush()
}

// printPulls writes how much is there of images that are being pulled, if there are any.
func printPulls(w io.Writer, pulls []listedPull) error {
	if len(pulls) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w)
	node, head := "", "PULLING\tDIGEST\tFETCHED"
	if pulls[0].node != "" {
		node = "NODE\t"
	}
	fmt.Fprintln(t, node+head)
	for _, p := range pulls {
		if node != "" {
			fmt.Fprint(t, p.node, "\t")
		}
		fmt.Fprintf(t, "%s\t%.19s\t%s\n", p.Repository, p.Digest, fetched(p.Pull))
	}
	return t.Flush()
}

// fetched says how much of an image is there.
func fetched(p containerruntime.Pull) string {
	return fmt.Sprintf("%.1f of %.1f MB (%d%%)", float64(p.Done)/1e6, float64(p.Total)/1e6, 100*p.Done/max(p.Total, 1))
}
