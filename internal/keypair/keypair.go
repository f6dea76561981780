// Package keypair shows the certificate that a pair of files holds now, to
// clients and to servers, so that one that is renewed is used without a restart, and
// reads files of authorities. It reads these files, and writes nothing.
package keypair

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
)

// A File is a certificate and its key in PEM form, read again when the
// certificate's file is another than before. While the two do not belong
// together, as when only one of them is written yet, the pair before is used.
type File struct {
	cert, key string
	mu        sync.Mutex
	have      *tls.Certificate
	file      os.FileInfo // of have
	unread    os.FileInfo // of what could not be read, which is logged once
}

// Open reads the pair of two files; the error is that of reading them.
func Open(cert, key string) (*File, error) {
	f := &File{cert: cert, key: key}
	if _, err := f.Certificate(); err != nil {
		return nil, err
	}
	return f, nil
}

// Certificate is the pair as it is now. It costs a stat.
func (f *File) Certificate() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, err := os.Stat(f.cert)
	if err == nil && f.have != nil && same(st, f.file) {
		return f.have, nil
	}
	pair, loadErr := tls.LoadX509KeyPair(f.cert, f.key)
	if loadErr != nil {
		if f.have == nil {
			return nil, loadErr
		}
		if err == nil && !same(st, f.unread) {
			f.unread = st
			slog.Warn("a certificate cannot be read; the one before is used", "file", f.cert, "key", f.key, "err", loadErr)
		}
		return f.have, nil
	}
	renewed := f.have != nil
	f.have, f.file = &pair, st
	if renewed {
		slog.Info("a certificate was renewed", "file", f.cert, "until", pair.Leaf.NotAfter)
	}
	return f.have, nil
}

// same says that a file was neither replaced nor written since.
func same(a, b os.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Serving is Certificate for a tls.Config's GetCertificate.
func (f *File) Serving(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.Certificate() }

// Client is Certificate for a tls.Config's GetClientCertificate.
func (f *File) Client(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.Certificate() }
