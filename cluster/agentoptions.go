package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"knarr/internal/flaghelp"
)

// AgentOptions are the flags of `knarr agent`; keys of the config file are the
// flag names.
type AgentOptions struct {
	NodeOptions
	Server    string
	Token     string
	TokenFile string
	// AnyCA believes whoever answers when the token names no CA.
	AnyCA bool

	token joinToken
}

// Flags binds the options to their flags.
func (o *AgentOptions) Flags(f *pflag.FlagSet) {
	f.StringVarP(&o.Server, "server", "s", "", "`URL` of the server to join, such as https://host:6443 (also KNARR_URL)")
	f.StringVarP(&o.Token, "token", "t", "", "`token` to join with: node-token in the server's --data-dir (also KNARR_TOKEN); a node of the cluster needs none")
	f.StringVar(&o.TokenFile, "token-file", "", "`file` with that token")
	f.BoolVar(&o.AnyCA, "discovery-token-unsafe-skip-ca-verification", false, "with a token that names no CA, give its secret to whoever answers at --server")
	flaghelp.Group(f, "Joining")
	o.NodeOptions.flags(f)
}

// Validate completes the options and reports everything wrong with them.
func (o *AgentOptions) Validate() error {
	var f faults
	o.NodeOptions.validate(&f)
	o.checkKubelet(&f)
	if o.Server == "" {
		o.Server = os.Getenv("KNARR_URL")
	}
	if server, err := serverURL(o.Server); err != nil {
		f.errs = append(f.errs, err)
	} else {
		o.Server = server
	}
	token, err := readToken(o.Token, o.TokenFile)
	switch {
	case err != nil:
		f.errs = append(f.errs, err)
	case token == "":
		if _, err := os.Stat(layout{o.DataDir}.joined()); err != nil { // a member is known by its key
			f.add("token", "must be given; it is in node-token in the server's --data-dir")
		}
	default:
		if o.token, err = parseToken(token); err != nil {
			f.add("token", "%v", err)
		}
	}
	return errors.Join(f.errs...)
}

// knowsCA refuses to give the token's secret to whoever answers, unless the user
// wants that.
func (o *AgentOptions) knowsCA() error {
	switch {
	case o.token.caHash != "":
	case !o.AnyCA:
		return errors.New("--token names no CA, so its secret would go to whoever answers at --server; copy node-token from the server's --data-dir whole, or give --discovery-token-unsafe-skip-ca-verification to believe whoever answers")
	default:
		slog.Warn("--token names no CA, so whoever answers at --server is believed; node-token in the server's --data-dir names it")
	}
	return nil
}

// serverURL gives the URL in its full form. Pure.
func serverURL(s string) (string, error) {
	if s == "" {
		return "", errors.New("--server: must be given, as in https://host:6443")
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf("--server: %q is not a URL such as https://host:6443", s)
	}
	if u.Port() == "" {
		u.Host += ":6443"
	}
	return "https://" + u.Host, nil
}
