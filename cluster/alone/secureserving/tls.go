package secureserving

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"knarr/internal/keypair"
)

// A namedPair is a certificate and the names it is shown for; none: those that it has.
type namedPair struct {
	cert, key string
	names     []string
	file      *keypair.File
}

// named are the certificates of --tls-sni-cert-key.
func (o *Options) named() (all []namedPair, err error) {
	for _, s := range o.SNI {
		files, names, _ := strings.Cut(s, ":")
		cert, key, ok := strings.Cut(files, ",")
		if !ok || cert == "" || key == "" {
			return nil, fmt.Errorf("--tls-sni-cert-key: %q is not of the form cert,key or cert,key:names", s)
		}
		p := namedPair{cert: strings.TrimSpace(cert), key: strings.TrimSpace(key)}
		for name := range strings.SplitSeq(names, ",") {
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
				p.names = append(p.names, name)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// serving is how the certificate for a connection is found.
type serving func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// choose is the first certificate that is for the server name, or else the one without
// names.
func (o *Options) choose(otherwise serving) (serving, error) {
	named, err := o.named()
	if err != nil || len(named) == 0 {
		return otherwise, err
	}
	for i := range named {
		if named[i].file, err = keypair.Open(named[i].cert, named[i].key); err != nil {
			return nil, fmt.Errorf("--tls-sni-cert-key: %w", err)
		}
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		for _, p := range named {
			c, err := p.file.Certificate()
			if err == nil && hello.ServerName != "" && p.suits(c, hello.ServerName) {
				return c, nil
			}
		}
		return otherwise(hello)
	}, nil
}

// suits says whether a certificate is for a server's name.
func (p namedPair) suits(c *tls.Certificate, server string) bool {
	if len(p.names) > 0 {
		return p.lists(server)
	}
	return c.Leaf != nil && c.Leaf.VerifyHostname(server) == nil
}

// lists says whether a name is among those that the flag has.
func (p namedPair) lists(server string) bool {
	server = strings.ToLower(server)
	for _, name := range p.names {
		_, parent, below := strings.Cut(server, ".")
		if name == server || below && name == "*."+parent {
			return true
		}
	}
	return false
}

func (o *Options) curves() (ids []tls.CurveID) {
	for _, n := range o.Curves {
		ids = append(ids, tls.CurveID(n))
	}
	return ids
}

// listenConfig lets others have the port or the address too, where that is asked for.
func (o *Options) listenConfig() *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		set := func(option int) {
			if err == nil {
				controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1) })
				if controlErr != nil {
					err = controlErr
				}
			}
		}
		if o.SharePort {
			set(unix.SO_REUSEPORT)
		}
		if o.ShareAddress {
			set(unix.SO_REUSEADDR)
		}
		return err
	}}
}
