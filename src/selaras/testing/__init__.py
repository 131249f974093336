"""For tests of programs that use Selaras."""
