package componentflags

import (
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"knarr/internal/flaghelp"
)

// Connection is the flags of how requests are sent to the API server.
type Connection struct {
	ContentType string
	QPS         float32
	Burst       int
	// Limited says that QPS counts though no flag was given.
	Limited bool

	f *pflag.FlagSet
}

const protobuf, asJSON = "application/vnd.kubernetes.protobuf", "application/json"

// Bind declares the flags, with upstream's defaults of one program.
func (c *Connection) Bind(f *pflag.FlagSet, qps float32, burst int) {
	c.f = f
	f.StringVar(&c.ContentType, "kube-api-content-type", protobuf, "content `type` of requests to the API server")
	flaghelp.Values(f, "kube-api-content-type", protobuf, asJSON)
	f.Float32Var(&c.QPS, "kube-api-qps", qps, "`number` of requests a second that one client sends; unless it is given, no limit counts")
	f.IntVar(&c.Burst, "kube-api-burst", burst, "`number` of requests that one client sends at once")
}

// Validate names what cannot be.
func (c *Connection) Validate() error {
	if c.ContentType != "" && c.ContentType != protobuf && c.ContentType != asJSON {
		return errors.New("--kube-api-content-type: neither " + protobuf + " nor " + asJSON)
	}
	if c.Burst < 0 {
		return errors.New("--kube-api-burst: must not be negative")
	}
	return nil
}

// Limits are how many requests a second a client may send, and how many at once; none
// unless they are given: the API server has its own ways to be fair.
func (c *Connection) Limits() (qps float32, burst int) {
	given := c.Limited || c.f != nil && (c.f.Changed("kube-api-qps") || c.f.Changed("kube-api-burst"))
	if !given || c.QPS <= 0 {
		return 0, 0
	}
	return c.QPS, c.Burst
}

// Apply completes what a kubeconfig says.
func (c *Connection) Apply(cfg *rest.Config) {
	if c.ContentType == asJSON {
		cfg.ContentType, cfg.AcceptContentTypes = asJSON, asJSON
	}
	if qps, burst := c.Limits(); qps > 0 {
		cfg.QPS, cfg.Burst = qps, burst
	}
}
