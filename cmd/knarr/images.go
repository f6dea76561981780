package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"knarr/cluster"
	"knarr/cluster/dev"
	"knarr/internal/flaghelp"
	"knarr/internal/run"
	"knarr/node/containerruntime"
)

func images(f *pflag.FlagSet) runner {
	dir := f.StringP("data-dir", "d", cluster.DefaultDataDir, "`directory` of the cluster")
	all := f.Bool("all-nodes", false, "on every node of a knarr dev cluster")
	names := f.StringSlice("node", nil, "on these `nodes` of a knarr dev cluster")
	name := f.String("name", dev.DefaultName, "`name` of that cluster")
	base := f.String("dir", dev.DefaultDir, "`directory` that such clusters live in")
	form := f.StringP("output", "o", "", "how ls shows them: `wide`, json or name")
	flaghelp.Values(f, "output", imageForms...)
	return func(ctx context.Context, args []string) error {
		if *form != "" && !slices.Contains(imageForms, *form) {
			return fmt.Errorf("--output is %q; it may be wide, json or name", *form)
		}
		if len(args) == 0 {
			return fmt.Errorf("images needs load, pull, ls or rm; knarr images --help tells more")
		}
		what, rest := args[0], args[1:]
		switch {
		case !slices.Contains([]string{"load", "import", "pull", "ls", "list", "rm", "remove"}, what):
			return fmt.Errorf("images has no %q; it has load, pull, ls and rm", what)
		case len(rest) == 0 && (what == "load" || what == "import"):
			return fmt.Errorf("images load needs a file, an OCI or docker-save archive")
		case len(rest) == 0 && what == "pull":
			return fmt.Errorf("images pull needs an image name, such as registry.k8s.io/pause:3.10")
		case len(rest) == 0 && (what == "rm" || what == "remove"):
			return fmt.Errorf("images rm needs an image name; knarr images ls lists them")
		}
		nodes := []dev.NodeDir{{Dir: *dir}}
		if *all || len(*names) > 0 {
			if *all && len(*names) > 0 {
				return errors.New("--all-nodes and --node are both given; give one")
			}
			c, err := dev.Open(*base, *name)
			if err != nil {
				return err
			}
			if nodes, err = c.NodeDirs(*names...); err != nil {
				return err
			}
		}
		if what == "ls" || what == "list" {
			list, pulls, err := listImages(ctx, nodes)
			if err != nil {
				return err
			}
			if err := printImages(os.Stdout, list, *form); err != nil || *form != "" && *form != "wide" {
				return err
			}
			return printPulls(os.Stdout, pulls)
		}
		for _, node := range nodes {
			if err := imagesOf(ctx, node, what, rest); err != nil {
				return err
			}
		}
		return nil
	}
}

// imagesOf changes the images of one node.
func imagesOf(ctx context.Context, node dev.NodeDir, what string, rest []string) error {
	store, err := cluster.Images(node.Dir)
	if err != nil {
		return err
	}
	defer store.Close()
	on := ""
	if node.Node != "" {
		on = " on " + node.Node
	}
	switch what {
	case "load", "import":
		for _, file := range rest {
			names, err := store.LoadFile(ctx, file, progress(file))
			if err != nil {
				return err
			}
			for _, n := range names {
				fmt.Printf("loaded %s%s\n", n, on)
			}
		}
		return nil
	case "pull":
		for _, name := range rest {
			full, err := pullImage(ctx, store, name)
			if err != nil {
				return err
			}
			fmt.Printf("pulled %s%s\n", full, on)
		}
		return nil
	default: // rm
		for _, name := range rest {
			if err := store.RemoveImage(ctx, name); err != nil {
				return err
			}
			fmt.Printf("removed %s%s\n", name, on)
		}
		return nil
	}
}

// pullImage pulls an image and meanwhile shows how much of it is there.
func pullImage(ctx context.Context, store *containerruntime.Images, name string) (full string, err error) {
	show := progress(name)
	done := make(chan struct{})
	run.Go("pull", func() {
		defer close(done)
		err = run.Catch("pull", func() (err error) {
			full, err = store.Pull(ctx, name)
			return err
		})
	})
	for tick := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case <-done:
			tick.Stop()
			if show != nil {
				fmt.Fprint(os.Stderr, "\r\033[K")
			}
			if err != nil {
				err = fmt.Errorf("pull %s: %w", name, err)
			}
			return full, err
		case <-tick.C:
			if show == nil {
				continue
			}
			if p, found, err := store.PullOf(ctx, name); err == nil && found {
				show(fetched(p))
			} else {
				show("pulling")
			}
		}
	}
}

// progress shows what is being done, on a terminal only.
func progress(file string) func(string) {
	if st, err := os.Stderr.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return func(what string) { fmt.Fprintf(os.Stderr, "\r\033[K%s: %s", file, what) }
}
