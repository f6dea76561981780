package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"knarr/cluster/alone"
	"knarr/internal/flaghelp"
)

// runAlone runs one component by itself.
func runAlone(c alone.Component) bind {
	return func(f *pflag.FlagSet) runner {
		p := c.New(f)
		flaghelp.Group(f, "Flags")
		format := f.String("log-format", "text", "`format` of the log: text or json")
		flaghelp.Values(f, "log-format", "text", "json")
		debug := f.Bool("debug", false, "log more")
		verbosity := f.IntP("v", "v", 0, "upstream's `level` of logging: 4 and above is --debug")
		flaghelp.Group(f, "Log")
		return func(ctx context.Context, _ []string) error {
			if *format != "text" && *format != "json" {
				return fmt.Errorf("--log-format: %q is neither text nor json", *format)
			}
			setLog(ctx, *format, *debug || *verbosity >= 4)
			return p.Run(ctx)
		}
	}
}
