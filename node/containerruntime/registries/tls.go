package registries

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// CheckFiles reads the files of TLS that the hosts have, and says of each that is of no use which
// entry of registries.yaml names it. containerd reads them again at each pull, so that only
// those of the hosts' images fail, until the file is there.
func (c Config) CheckFiles() (wrong []error) {
	for _, name := range slices.Sorted(maps.Keys(c.Configs)) {
		if err := c.checkFiles(name); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

// CheckFilesOf is the same for the hosts that are asked for a registry's images.
func (c Config) CheckFilesOf(registry string) error {
	names := []string{}
	for _, h := range c.asked(registry) {
		if name, ok := c.entry(h); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var wrong []error
	for _, name := range names {
		wrong = append(wrong, c.checkFiles(name))
	}
	return errors.Join(wrong...)
}

// checkFiles reads the files that an entry of configs names.
func (c Config) checkFiles(name string) error {
	field, err := c.Configs[name].TLS.check()
	if err == nil {
		return nil
	}
	file := c.path
	if file == "" {
		file = "registries.yaml"
	}
	return fmt.Errorf("%s: configs[%q].tls.%s: %w", file, name, field, err)
}

// check reads the files, and says whose is of no use.
func (t *TLS) check() (field string, err error) {
	if t == nil {
		return "", nil
	}
	if t.CAFile != "" {
		b, err := os.ReadFile(t.CAFile)
		if err != nil {
			return "ca_file", err
		}
		if !x509.NewCertPool().AppendCertsFromPEM(b) {
			return "ca_file", fmt.Errorf("%s has no certificate in it", t.CAFile)
		}
	}
	if t.CertFile == "" {
		return "", nil
	}
	cert, err := os.ReadFile(t.CertFile)
	if err != nil {
		return "cert_file", err
	}
	key, err := os.ReadFile(t.KeyFile)
	if err != nil {
		return "key_file", err
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return "cert_file", fmt.Errorf("%s, with %s as its key: %w", t.CertFile, t.KeyFile, err)
	}
	return "", nil
}
