package apiflags

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"

	"knarr/controlplane/apiserver/audit"
)

// loadAudit reads the policy and opens the log. Without both nothing is
// written down.
func (a *Flags) loadAudit() (err error) {
	switch {
	case a.auditMode != "blocking" && a.auditMode != "blocking-strict":
		return fmt.Errorf("--audit-log-mode: %q is not built; use blocking or blocking-strict", a.auditMode)
	case a.auditFormat != "json":
		return fmt.Errorf("--audit-log-format: %q is not built; use json", a.auditFormat)
	case a.auditAge < 0 || a.auditBackups < 0 || a.auditSize < 0:
		return errors.New("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize must not be negative")
	case a.auditPolicy == "" && a.auditLog == "":
		return nil
	case a.auditPolicy == "":
		return errors.New("--audit-log-path: name the policy with --audit-policy-file")
	}
	policy, err := audit.Load(a.auditPolicy)
	if err != nil {
		return fmt.Errorf("--audit-policy-file: %w", err)
	}
	if a.auditLog == "" {
		return nil
	}
	strict := a.auditMode == "blocking-strict"
	if a.auditLog == "-" {
		policy.To(audit.NewLog(os.Stdout), strict)
	} else {
		if err := writable(a.auditLog); err != nil {
			return fmt.Errorf("--audit-log-path: %w", err)
		}
		policy.To(audit.NewLog(&lumberjack.Logger{
			Filename: a.auditLog, MaxAge: a.auditAge, MaxBackups: a.auditBackups, MaxSize: a.auditSize, Compress: a.auditCompress,
		}), strict)
	}
	a.audit = policy
	return nil
}

// writable makes the log, which only its owner may read.
func writable(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
