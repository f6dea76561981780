package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"knarr/cluster/alone"
)

// runAlone runs one component by itself.
func runAlone(ctx context.Context, c alone.Component, args []string) error {
	f := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	p := c.New(f)
	format := f.String("log-format", "text", "text or json")
	debug := f.Bool("debug", false, "log more")
	verbosity := f.IntP("v", "v", 0, "upstream's `level` of logging: 4 and above is --debug")
	if stop, err := parse(f, args); stop {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s takes no argument %q; knarr %s --help lists the flags", c.Name, f.Arg(0), c.Name)
	}
	if *format != "text" && *format != "json" {
		return fmt.Errorf("--log-format: %q is neither text nor json", *format)
	}
	setLog(*format, *debug || *verbosity >= 4)
	return p.Run(ctx)
}
