package apiflags

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"knarr/controlplane/apiserver"
)

// serving is the flags that bound requests and connections.
type serving struct {
	timeout, delay         time.Duration
	minWatch               int
	shutdownSendRetryAfter bool
	streams                int
	goaway                 float64
}

func (s *serving) bind(f *pflag.FlagSet) {
	f.DurationVar(&s.timeout, "request-timeout", time.Minute, "longest `time` of a request that is not long-running")
	f.IntVar(&s.minWatch, "min-request-timeout", 1800, "`seconds` that a watch lives at least, and at most twice as long, if it does not say")
	f.DurationVar(&s.delay, "shutdown-delay-duration", 0, "`time` to go on serving at the end, while /readyz fails already")
	f.BoolVar(&s.shutdownSendRetryAfter, "shutdown-send-retry-after", false, "answer 429 with Retry-After to what comes after that, until requests under way have been answered")
	f.IntVar(&s.streams, "http2-max-streams-per-connection", 0, "`number` of requests at once on an HTTP/2 connection; 0 is 100")
	f.Float64Var(&s.goaway, "goaway-chance", 0, "how likely a request is to end its HTTP/2 connection, from 0 to 0.02")
}

func (s *serving) check() error {
	var errs []error
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{s.timeout < 0, "--request-timeout can not be negative value"},
		{s.goaway < 0 || s.goaway > 0.02, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{s.minWatch < 0, "--min-request-timeout can not be negative value"},
		{s.delay < 0, "--shutdown-delay-duration can not be negative value"},
		{s.streams < 0, "--http2-max-streams-per-connection can not be a negative value"},
	} {
		if c.wrong {
			errs = append(errs, errors.New(c.text))
		}
	}
	return joined(errs)
}

func (s *serving) apply(c *apiserver.Config) {
	c.RequestTimeout, c.MinWatch = s.timeout, time.Duration(s.minWatch)*time.Second
	c.ShutdownDelay, c.ShutdownSendRetryAfter = s.delay, s.shutdownSendRetryAfter
	c.Streams, c.GoawayChance = s.streams, s.goaway
}
