package webhook

import (
	"errors"
	"net"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Credentials are what the server shows to webhooks, by their address. Nil
// shows nothing.
type Credentials struct{ config clientcmdapi.Config }

// LoadCredentials reads them from a kubeconfig, whose users are named for the
// webhooks' hosts.
func LoadCredentials(file string) (*Credentials, error) {
	config, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: file}).Load()
	if err != nil {
		return nil, err
	}
	for _, user := range config.AuthInfos {
		if user.AuthProvider != nil {
			return nil, errors.New("auth provider not supported")
		}
	}
	return &Credentials{*config}, nil
}

// of is the user for a host and port: the one named so, or for a domain it is
// in, the same without the port if that is 443, "*", or the current context's.
func (c *Credentials) of(target string) *clientcmdapi.AuthInfo {
	if c == nil {
		return nil
	}
	names := wider(target)
	if host, port, err := net.SplitHostPort(target); err == nil && port == "443" {
		names = append(names, wider(host)...)
	}
	for _, name := range append(names, "*") {
		if user, ok := c.config.AuthInfos[name]; ok {
			return user
		}
	}
	if current := c.config.Contexts[c.config.CurrentContext]; current != nil {
		return c.config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// wider are a name and the patterns that it matches.
func wider(name string) []string {
	names := []string{name}
	for _, domain, ok := strings.Cut(name, "."); ok; _, domain, ok = strings.Cut(domain, ".") {
		names = append(names, "*."+domain)
	}
	return names
}

// show is how a client shows them.
func show(user *clientcmdapi.AuthInfo) *rest.Config {
	if user == nil {
		return &rest.Config{}
	}
	return &rest.Config{
		BearerToken: user.Token, BearerTokenFile: user.TokenFile,
		Username: user.Username, Password: user.Password,
		Impersonate: rest.ImpersonationConfig{
			UserName: user.Impersonate, UID: user.ImpersonateUID, Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra,
		},
		TLSClientConfig: rest.TLSClientConfig{
			CertFile: user.ClientCertificate, CertData: user.ClientCertificateData,
			KeyFile: user.ClientKey, KeyData: user.ClientKeyData,
		},
		ExecProvider: user.Exec,
	}
}
