package keypair

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Authorities are the certificates of a file in PEM form, as it is now. A file that holds
// none is an error.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}
