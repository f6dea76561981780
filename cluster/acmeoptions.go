package cluster

import (
	"crypto/x509"
	"os"

	"knarr/addons/gateway/acme"
)

// validateACME completes which authority certificates are got from, if one is given.
func (o *Options) validateACME(f *faults) {
	if o.ACMEDirectory == "" && o.ACMEEmail == "" {
		if o.ACMECA != "" {
			f.add("acme-ca", "it is about the authority that --acme-directory names; give that too")
		}
		return
	}
	o.acme = &acme.Config{Directory: o.ACMEDirectory, Email: o.ACMEEmail}
	if err := o.acme.Validate(); err != nil {
		f.add("acme-directory", "%v", err)
	}
	if o.ACMECA == "" {
		return
	}
	text, err := os.ReadFile(o.ACMECA)
	if err != nil {
		f.add("acme-ca", "%v", err)
		return
	}
	o.acme.Roots = x509.NewCertPool()
	if !o.acme.Roots.AppendCertsFromPEM(text) {
		f.add("acme-ca", "%s holds no certificate in PEM", o.ACMECA)
	}
}
