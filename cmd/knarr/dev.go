package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"knarr/cluster/dev"
	"knarr/internal/flaghelp"
)

// devCluster runs clusters of several nodes on this machine.
func devCluster(f *pflag.FlagSet) runner {
	name := f.String("name", dev.DefaultName, "`name` of the cluster; its nodes are NAME-1, NAME-2 and so on")
	base := f.String("dir", dev.DefaultDir, "`directory` that the clusters live in")
	o := dev.Options{Progress: os.Stdout}
	f.IntVar(&o.Nodes, "nodes", 0, "how `many` nodes (default: as many as before, at first 2)")
	f.IntVar(&o.Servers, "servers", 0, "how `many` of them are servers, the first ones (default: as many as before, at first 1)")
	f.StringVar(&o.IPFamily, "ip-family", "", "address `family` of the cluster: ipv4, ipv6 or dual (default: as before, at first ipv4)")
	flaghelp.Values(f, "ip-family", dev.IPFamilies...)
	f.BoolVar(&o.Outside, "outside", false, "let the nodes reach what this host reaches")
	limit := f.Duration("timeout", 2*time.Minute, "the longest `time` to wait")
	return func(ctx context.Context, words []string) error {
		var more []string
		if at := f.ArgsLenAtDash(); at >= 0 {
			words, more = words[:at], words[at:]
		}
		if len(words) == 0 {
			return errors.New("dev needs up, down or ls; knarr dev --help tells more")
		}
		if len(words) > 1 {
			return fmt.Errorf("dev %s takes no argument %q; the flags of its servers go after --", words[0], words[1])
		}
		if len(more) > 0 && words[0] != "up" {
			return fmt.Errorf("dev %s starts no server, so it takes no flags after --", words[0])
		}
		cluster, err := dev.Open(*base, *name)
		if err != nil {
			return err
		}
		if words[0] == "gate" { // what up starts for several servers
			return cluster.Gate(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		switch words[0] {
		case "up":
			o.ServerArgs = more
			return cluster.Up(ctx, o)
		case "down":
			return cluster.Down(ctx)
		case "ls", "list":
			return dev.List(os.Stdout, *base)
		}
		return fmt.Errorf("dev has no %q; it has up, down and ls", words[0])
	}
}
