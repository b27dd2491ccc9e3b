"""The rules of `glass explain`, by theme: each looks at one run and returns a finding, or nothing."""
