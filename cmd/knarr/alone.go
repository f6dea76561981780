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
		format := f.String("log-format", "text", "`format` of the log: text or json")
		flaghelp.Values(f, "log-format", "text", "json")
		debug := f.Bool("debug", false, "log more")
		flaghelp.Group(f, "Log")
		return func(ctx context.Context, _ []string) error {
			if *format != "text" && *format != "json" {
				return fmt.Errorf("--log-format: %q is neither text nor json", *format)
			}
			upstreams, more, err := p.Logging()
			if err != nil {
				return err
			}
			if f.Changed("logging-format") {
				*format = upstreams
			}
			setLog(ctx, *format, *debug || more)
			return p.Run(ctx)
		}
	}
}
