package apiflags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/natefinch/lumberjack.v2"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"knarr/controlplane/apiserver/audit"
)

// loadAudit reads the policy and opens the log. Without both nothing is
// written down.
func (a *Flags) loadAudit() (err error) {
	switch {
	case !slices.Contains(auditModes, a.auditMode):
		return fmt.Errorf("--audit-log-mode: %q is none of %s", a.auditMode, strings.Join(auditModes, ", "))
	case !slices.Contains(auditModes, a.auditHookMode):
		return fmt.Errorf("--audit-webhook-mode: %q is none of %s", a.auditHookMode, strings.Join(auditModes, ", "))
	case a.auditFormat != "json":
		return fmt.Errorf("--audit-log-format: %q is not built; use json", a.auditFormat)
	case a.auditAge < 0 || a.auditBackups < 0 || a.auditSize < 0:
		return errors.New("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize must not be negative")
	case a.auditPolicy == "" && a.auditLog == "" && a.auditHook == "":
		return nil
	case a.auditPolicy == "" && a.auditLog == "":
		return errors.New("--audit-webhook-config-file: name the policy with --audit-policy-file")
	case a.auditPolicy == "":
		return errors.New("--audit-log-path: name the policy with --audit-policy-file")
	}
	for _, s := range []struct {
		name, mode string
		batch      audit.Batching
		short      audit.Truncating
	}{{"log", a.auditMode, a.auditLogBatch, a.auditLogShort}, {"webhook", a.auditHookMode, a.auditHookBatch, a.auditHookShort}} {
		if s.mode == "batch" {
			if err := s.batch.Validate(s.name); err != nil {
				return err
			}
		}
		if err := s.short.Validate(s.name); err != nil {
			return err
		}
	}
	policy, err := audit.Load(a.auditPolicy)
	if err != nil {
		return fmt.Errorf("--audit-policy-file: %w", err)
	}
	if a.auditHook != "" {
		hook, err := audit.NewWebhook(a.auditHook, a.auditBackoff)
		if err != nil {
			return fmt.Errorf("--audit-webhook-config-file: %w", err)
		}
		policy.To("webhook", a.sink(hook, a.auditHookMode, a.auditHookBatch), a.auditHookMode == "blocking-strict", a.auditHookShort)
		a.audit = policy
	}
	if a.auditLog == "" {
		return nil
	}
	var out io.Writer = os.Stdout
	if a.auditLog != "-" {
		if err := writable(a.auditLog); err != nil {
			return fmt.Errorf("--audit-log-path: %w", err)
		}
		out = &lumberjack.Logger{
			Filename: a.auditLog, MaxAge: a.auditAge, MaxBackups: a.auditBackups, MaxSize: a.auditSize, Compress: a.auditCompress,
		}
	}
	policy.To("log", a.sink(audit.NewLog(out), a.auditMode, a.auditLogBatch), a.auditMode == "blocking-strict", a.auditLogShort)
	a.audit = policy
	return nil
}

var auditModes = []string{"batch", "blocking", "blocking-strict"}

// sink is where events go in a mode.
func (a *Flags) sink(to interface {
	audit.Sink
	Send(context.Context, []*auditv1.Event) error
}, mode string, b audit.Batching) audit.Sink {
	if mode == "batch" {
		return audit.NewBatch(b, to.Send)
	}
	return to
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
