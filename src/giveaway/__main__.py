from giveaway.cli import main

main()
