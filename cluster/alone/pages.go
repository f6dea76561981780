package alone

import (
	"github.com/spf13/pflag"

	"knarr/internal/healthz"
	"knarr/internal/zpages"
)

// The features that pages about the process are.
const flagz, statusz = zpages.FlagzFeature, zpages.StatuszFeature

// values are the flags of a program as they are when they are asked for.
func values(f *pflag.FlagSet) func() map[string]string {
	return func() map[string]string {
		all := map[string]string{}
		f.VisitAll(func(one *pflag.Flag) { all[one.Name] = one.Value.String() })
		return all
	}
}

// elected is the check of a leader; none where nobody is elected.
func elected(healthy func() error) []healthz.Check {
	if healthy == nil {
		return nil
	}
	return []healthz.Check{healthz.Of("leaderElection", healthy)}
}
